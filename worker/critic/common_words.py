"""The most common words of languages in Latin letters, used to detect the language of a text (`coverage.py`).

The words are in lower case, also without accents where people leave those out. The languages that the rules read
(`READABLE`) also have typical words of customers' messages and order lines. A word may belong to several languages.
"""

from __future__ import annotations

READABLE = ("en", "de", "fr", "es", "it")
"""The languages in which the rules have words to look for."""

ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyzäöüßàâæçéèêëîïôœùûÿáíóúñìò")
"""The letters of the readable languages, lower case."""

_EN = """
a about account after again ago all almost already also although always am an and another any anything are arrive arrived as ask
asked at available away back be because been before being best better both box bought broke broken but buy by call called came can
cannot card case change changed charge charged code colour color come coming contact correct could cracked credit customer damaged
date day days dead deal delay delayed deliver delivered delivery describe description did didn different discount do does doesn doing
don done double down due each early either email empty enough even ever every exchange expected expensive explain extra fault faulty
fee few fine first fit for found free from front full get gets getting gift give given go going gone good got had half happy has hasn
have haven having he hello help her here hi him his home hope how however i if in incorrect inside instead into invoice is isn it item
items its just keep kind know label large last late later least left less let like line list little ll long look looking lost lot low
made mail make many may maybe me mean message might missing mistake money month months more morning most much must my name need
needed never new next nice no nobody not note nothing now number of off ok okay old on once one only open opened or order ordered
orders other our out outside over own package packaging paid parcel part parts pay payment people person phone photo pick picture
piece pieces place please point possible post postage previous price problem product promised purchase put quality quantity question
quick quite rather re read really reason receipt receive received refund remember reply request return returned right said sale same
say says see seem seems seen sell send sent service set several shall she shipped shipping shop should show side since size small so
some somebody someone something soon sorry stage still stop stopped store such support sure take taken team tell than thank thanks that
the their them then there these they thing things think this those though three through time times to today together told tomorrow
too took total tracking tried try turn twice two under unfortunately until up update us use used using ve very wait waiting want
wanted was wasn way we week weeks well went were what when where which while who whole whose why will wish with within without won
work worked working works would write wrong year years yes yesterday yet you your yours
art baby bag bags ball bath beads bell big bird black blue board book bottle bowl box boxes bread brown bunny butterfly button cabinet
cake candle candles card cards case cat ceramic chain chair cherry chest child children chocolate christmas circus clock cloth coat
coffee cosy cotton country cover craft cream crystal cup cups cushion cut daisy decoration design diamond dish dog doll door dots
drawer dress drink ear egg enamel face fairy felt finish fire fish flag floral flower flowers food frame fruit funky garden garland
girl girls glass glitter gold green grey hair hand hanger hanging happy hat heart hearts herb holder hook hot house ice ink iron jam
jar jewel jug key keys kitchen kit knitted lace ladies lamp large lantern large leaf letter light lights lunch magic magnet match men
metal milk mini mirror modern money mother mouse mug mugs napkins natural necklace night notebook office orange ornament pack paint
pan paper party patch pen pencil pencils photo picnic picture pink pins plant plaster plate plates polka pot pots pretty print purple
purse puzzle rabbit rack rain rainbow red retro ribbon ribbons ring robot roll room rose round rubber scissors seat shelf shoe shoes
shoulder sign silver sketch skull snow soap spoon spot spots square star stars stick stickers sticks stone storage strawberry string
strip sugar summer sweet table tag tail tea teapot tidy tile tin tins towel toy tray trays tree tube umbrella union vintage wall warmer
warm washing watch water white wicker wind window wine winter wire wood wooden wool world wrap yellow zip
ban bat ben bet ca dan ego fun han hang hans ignore jan kim met mina mine mono ole pan pat ref sam san sense sin till van war yang
"""
_DE = """
ab aber abgebucht abgelehnt adresse alle allem allen aller alles als also alt alte alten am an andere anderen anderes angekommen
angebot anruf antwort artikel auch auf aus bei beide beim bekommen benötige berechnet beschädigt beschreibung besser bestellt
bestellte bestellung betrag bezahlt bild bin bis bisher bitte blau brauche da dabei dafür damit danach dank danke dann daran darauf
darum das dass davon dazu defekt dein deine dem den denn der deren des deshalb die dies diese diesem diesen dieser dieses doch dort
drei du durch ein eine einem einen einer eines einfach einmal email entspricht er erhalten erhielt erst erstatten erstattung es etwas
euch euer falsch falsche falschen falscher farbe fehlt fehlen fehler foto frage fuer für funktioniert ganz geändert gebühr geht gegangen gekauft
gekommen geld geliefert gern gerne geschenk geschickt gestern gibt ging grösse groesse grün gut gutschein guten habe haben hallo hat
hatte hatten heute hier ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im immer in ist ja jede jeder jedoch jemand jetzt kam kann kannst
kaputt kauf kaum kein keine keinen klein kleid kommt konnte könnte können kosten kunde kundin kurz lange lassen leider letzte letzten
lieferung liegt machen man marke mehr mein meine meinem meinen meiner meines mich mir mit möchte mochte monat monate morgen muss müssen nach
nachbar nachricht name nicht nichts nie niemand noch nochmal nun nummer nur ob oben obwohl oder offen ohne packung paket passt passen per post
preis probleme problem produkt qualität qualitaet rechnung richtig richtige rot rücksendung ruecksendung rückgabe sagen sagt schade
schaden schicken schlecht schlechte schon schwarz sehr sein seine seit selbst sich sicher sie siehe sind so sofort sollte sondern
sonst stark statt steht stimmt storniert stück tag tage tagen teil teile teuer trotz trotzdem über überhaupt ueber um umtausch und uns unser unsere unter
verkauft verpackung versand versandkosten verschickt verspätet viel viele vielen vier vom von vor vorherige war ware waren warum was weg
wegen weich weil weiss weiß welche welchen welcher wenig wenn wer werde werden wie wieder will wir wird wo woche wochen wohl wollte
worden wurde wurden zahlen zahlung zeit zerbrochen zu zugestellt zum zur zurück zurueck zusammen zwei zwischen
"""
_FR = """
a achat acheté adresse ai aime alors après argent arrivé arrivée article as au aucun aujourd aussi autre aux avait avec avez avoir
avons baissé bien bleu bon bonjour bonne boîte c ça car carte cassé cassée ce cela celle cent ces cet cette chez client cliente colis
commande commandé commandée comme comment compte correcte couleur d dans de défaut défectueux déjà depuis dernier des deux dire dois
donc dont du e elle elles en encore endommagé entre envoi envoyé erreur es est et été était être eu facture fait fois fonctionne
frais grande grand gratuit hier hui ici il ils j jamais je jour jours juste l la le lendemain les leur livraison livré ma mais manque
mauvais mauvaise me même merci mes mois moi mon montant n ne ni non nos notre nous numéro on ont ou où oui p paiement pas
pendant petit peu peut plus pour pourquoi pouvez précédent premier prix probleme problème produit puis qu qualité quand que quel
quelle quelque qui quoi r reçu rembourser remboursement remboursé rendu reste retard retour rien s sa sais sans se semaine semaines
ses si soit son sont sous suis sur t ta taille tard tasse te toujours tous tout toute toutes très trois trop tu un une vais vers veux
veuillez voici voudrais votre vous vos y quels moi toi met mets
"""
_ES = """
a al algo alguien algún anterior antes año aquí así aun aún aunque ayer azul bien bolsa buena buenas bueno buenos cada caja cambio cambiar
camisa cancelado cantidad casa caso cliente cobraron cobrado color como cómo compra compré comprado con contra correcto correo costó
creo cual cuál cuando cuándo cuenta cuento da dañado de defecto defectuoso del desde después devolución devolver devuelto día días dinero
dirección dos el él ella ellos email en entrega entregado entre envío enviado enviaron equivocado era error es esa ese eso esta está
estaba están estar este esto estoy etiqueta factura falta favor fecha fue fueron foto funciona gastos gracias grande ha había hace
hacer hacia hasta hay haber he hola hoy importe ir la las le les llegado llega llegó lo los luego mal mañana más me mensaje menos mes
meses mi mis mismo mucho muchas muy nada nadie ni no nos nosotros nuestra nuestro nueva nuevo número nunca o otra otro pagado pago
pagué paquete para parte pedido pedí pequeño pero por porque precio primera primero problema producto puede puedo pues que qué quien
quiero recibí recibido reembolso rota roto sale se semana semanas ser será si sí sido siempre sin sobre solo sólo somos son soy su sus
talla también tampoco tan tanto tarde tarjeta taza te tengo tenía tiene tienda todavía todo todos trabajo tres tu tuve un una uno unos
usted va veces vez ya yo puedes mostrar estas ama anteriores ignora
"""
_IT = """
a abbiamo acquisto acquistato ad adesso aiuto al alla alle allora altra altre altri altro anche ancora anni appena aperta aperto
arrivata arrivato articolo aspettare avere avete aveva avevo avuto bene blu bolla buona buongiorno buono c cambio cambiare casa che chi
ci ciao cinque cliente codice col colore come con conto corretto corriere così costi cosa cui d da dal dalla danneggiato de dei del
della delle denaro dello deve di difetto difettoso dire dopo dove due e è ed era erano errore essere fa fare fattura fatto favore fine
fino foto fra funziona giorni giorno già gli grande grazie ha hai hanno ho i ieri il importo in indirizzo indietro invece inviato io
la l lavoro le lei lettera li lo loro ma mai male mancante manca me meno merce mese mesi messaggio mi mia mie mio molto nel nella nero
nessuno niente no noi nome non nostra nostro numero nuova nuovo o ogni oggi ordinato ordine ordini ore orari ormai pacco pagamento
pagato parte per perché perche piccolo piccola più piu po poi posso potete precedente prego presso prezzo prima problema prodotto
proprio puoi può qualcosa qualità quale quali quando quanto quasi quella quello questa queste questo qui reso resto ricevuto
rimborso rotta rotto s sbagliata sbagliato scatola scusate se sei sempre senza settimana settimane si sì sia siamo solo sono soldi
spedito spedizione spese sta stata stati stato sto su sua subito sul sulla suo t taglia tanto tardi taza tazza te tempo tra tre troppo tu
tua tuo tutti ignora tutto un una uno v va vi volta voi vorrei vostro vostra vuole
"""
# Languages that the rules do not read. A word that a readable language has too counts for neither.
_OTHERS = """
pt: o os um uma uns e é não nao são sao foi era está estou eu você voce vocês nós nos meu minha seu sua seus suas que com para por pelo
pt: pela em no na do da dos das ao aos mais muito também já ainda quando como mas ou se isto isso este esta produto encomenda pedido
pt: chegou chegaram recebi dinheiro reembolso ignore esqueça todas todos instruções anteriores regras agora aprove pague obrigado pago
nl: de het een en van ik je jij u wij zij niet dat die dit is was zijn heb heeft hebben had met voor op aan bij naar uit om te er maar
nl: ook nog wel geen mijn uw jouw onze hun deze wat wie waar hoe als dan dus nu al alle zonder over nooit kwam kapot pakket bestelling
nl: bezorgd geld terug graag bedankt negeer vorige eerdere instructies regels keur goed terugbetaling betaal verkeerde maat
af: die nie ek jy ons hulle het is was van vir met op aan sy haar baie hierdie alle vorige ignoreer instruksies terugbetaling
pl: i w z na do nie się sie jest są sa był była było to ten ta te tego tej że ze jak ale lub albo od po przy dla przez bez czy już juz
pl: tylko mi mnie mój moja moje moją ja ty pan pani co kto gdzie kiedy proszę prosze dziękuję dziekuje nigdy paczka zamówienie zwrot
pl: zwrotu pieniądze zły rozmiar przyszedł przyszła pobity dotarła zignoruj wszystkie poprzednie instrukcje zasady zatwierdź wypłać kwotę
cs: a v ve z ze s se si na do je jsou byl byla bylo to ten ta tento tuto že ale nebo od po při pro bez už jen mi mně můj moje já ty co
cs: kdo kde kdy jak prosím děkuji nikdy dorazil dorazila balík objednávka peníze vrátit rozbitý hrnek ignoruj všechny předchozí pokyny schval
sk: a v vo z zo s sa si na do je sú bol bola bolo to ten táto že ale alebo od po pri pre bez už len mi mňa môj moje čo kto kde kedy ako
sk: prosím ďakujem nikdy balík objednávka peniaze vrátiť ignoruj všetky predchádzajúce pokyny schváľ
sl: in v na za se je so bil bila bilo to ta da ne ali pa od po pri brez že samo mi moj moja kdo kje kdaj kako prosim hvala nikoli paket
hr: i u na za se je su bio bila bilo to ta taj da ne ali ili od po pri bez već samo mi moj moja što šta tko ko gdje kada kako molim hvala
hr: nikad paket narudžba novac povrat stigao stigla ignoriraj ignoriši sve prethodne upute uputstva odobri svi nije
bs: nije nisu jeste sam si smo ste bih biti ovo ovaj ova ovog zanemari pravila isplati
sv: och att det som en ett är var på av för med till den har hade inte jag du han hon vi ni de om men eller från när så kan ska skulle
sv: min mitt mina din ditt er ert alla inga utan aldrig paket beställning pengar tillbaka tack trasig kom muggen ignorera tidigare godkänn
da: og at det som en et er var på af for med til den har havde ikke jeg du han hun vi de om men eller fra når så kan skal skulle min mit
da: mine din dit alle ingen uden aldrig pakke bestilling penge tilbage tak ødelagt kom ignorer tidligere godkend
no: og at det som en et ei er var på av for med til den har hadde ikke jeg du han hun vi de om men eller fra når så kan skal skulle min
no: mitt mine din ditt alle ingen uten aldri pakke bestilling penger tilbake takk ødelagt kom ignorer tidligere godkjenn
is: og að það sem er var á af fyrir með til ekki ég þú hann hún við þeir en eða frá þegar svo minn mín allar allt takk pakkinn kom
fi: ja on ei se että oli ovat ole olen minä sinä hän me te he mutta tai kun jos niin myös vain tämä tama nämä tuo mikä missä miten
fi: minun sinun hänen kaikki ilman koskaan paketti tilaus rahat takaisin kiitos rikki muki saapunut saapui jätä huomiotta hyväksy ohjeet
et: ja on ei see et oli ole olen mina sina tema meie teie nad aga või kui siis ka ainult mis kus kuidas minu sinu kõik ilma kunagi pakk
lv: un ir nav tas ka bija es tu viņš mēs jūs bet vai kad ja arī tikai kas kur kā mans mana visi bez nekad paciņa lūdzu paldies naudu
lt: ir yra nėra tai kad buvo aš tu jis mes jūs bet ar kai jei taip pat tik kas kur kaip mano visi visus be niekada siunta prašau ačiū pinigus
hu: a az egy és nem van volt hogy ez azt ezt én te ő mi ti de vagy ha is már még csak meg ki hol mikor hogyan kérem köszönöm soha
hu: csomag rendelés pénzt vissza bögre érkezett minden összes korábbi utasítást hagyd figyelmen kívül jóvá visszatérítés törötten
ro: și si nu este e sunt a fost era că ca un o de la cu pentru pe din în in mai sau dar dacă când cum ce cine unde eu tu el ea noi voi
ro: meu mea mele al ai ale toate fără niciodată coletul comanda banii înapoi vă rog mulțumesc ignoră instrucțiunile aprobă anterioare
tr: ve bir bu şu o için ile de da mi mı mu mü ne nasıl nerede değil degil var yok çok daha en ama veya gibi ben sen biz siz benim senin
tr: hiç hic paket sipariş siparis para iade geldi gelmedi kırık kirik kupa lütfen lutfen teşekkürler tüm tum önceki onceki kuralları onayla unut öde
az: və bir bu üçün ilə deyil var yox çox daha amma mən sən biz siz mənim bütün əvvəlki sifariş pul
vi: và là của có không cho tôi bạn này đó được bị một các những với trong khi đã sẽ hàng tiền mọi cái cốc vỡ nhận bỏ qua hướng dẫn trước
vi: toi ban khong duoc hang tien nhan tra lai cua
id: dan yang di ke dari untuk dengan tidak ini itu adalah saya anda kami kita mereka ada akan sudah belum bisa atau tetapi semua jika pada
id: paket pesanan uang kembali rusak terima kasih tolong abaikan sebelumnya setujui instruksi pengembalian dana aturan bayar
ms: dan yang di ke dari untuk dengan tidak ini itu ialah saya anda kami kita mereka ada akan sudah belum boleh atau tetapi semua jika wang
tl: ang ng sa na mga ay at ko mo ka ako ikaw siya kami kayo sila hindi ito iyan para kung lahat wala may ng po salamat pera aprubahan huwag
sw: na ya wa kwa ni si la za katika hii hiyo huyo yote wote hakuna mimi wewe yeye sisi lakini au kama kila bila kamwe pesa mzigo agizo
sw: tafadhali asante puuza maagizo awali marejesho haya uidhinishe
so: iyo waa ma in ka ku la oo uu ay aan waxaa kan tan dhammaan lacag
ha: da na ya ta a ba ne ce shi ita wannan duk kuma ko don sai kudi
yo: ni ti si ati fun o mo wa won yi gbogbo owo jọwọ
zu: futhi ukuthi uma kanye ngoba lokhu yonke imali ngicela
ca: i el la els les un una de del que és no amb per en al dels no ha he molt també quan com però meva meu tots totes sense paquet diners
ca: ha arribat ignora les instruccions anteriors aprova aquest
gl: o a os as un unha e é non que con para por en no na máis moi tamén cando como pero meu miña todas
eu: eta da ez bat du dut zen hau hori nire zure baina edo guztiak gabe diru
ga: agus an na is tá ní bhí go leis ar seo sin mé tú sé sí muid gach gan airgead
cy: a ac y yr mae nid oedd yn gyda ar hwn hynny fi ti ef hi ni pob heb arian
sq: dhe në një është nuk ka për me nga që kjo ky unë ti ai ajo por ose kur si të gjitha pa paratë
mt: u il hu mhux kien ma ta li dan din jien int huwa imma jew kull bla flus
la: et est non in ad cum sed quod qui quae ut omnes sine ego tu nos vos hoc praecepta ignora priora sunt esse
eo: kaj estas ne la en al kun sed ke kiu mi vi li ŝi ni ili ĉi tiu ĉiuj sen mono
""".strip()


def _parsed() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {
        lang: set(words.casefold().split()) for lang, words in zip(READABLE, (_EN, _DE, _FR, _ES, _IT), strict=True)
    }
    for line in _OTHERS.splitlines():
        lang, _, words = line.partition(":")
        found.setdefault(lang, set()).update(words.casefold().split())
    return {lang: frozenset(words) for lang, words in found.items()}


COMMON_WORDS: dict[str, frozenset[str]] = _parsed()
"""ISO 639-1 code → words."""
