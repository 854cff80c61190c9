/** Reads one typed member of an answer's body, or refuses the whole answer. Names are checked against the OpenAPI document's types. */

import { Unreachable } from "./errors.js";

/** The body of an answer of the wire type `W`, before anything is known about its members. */
export type Body<W> = { readonly [Name in keyof W]?: unknown };

type NameOf<W> = keyof W & string;

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const HAS_ZONE = /(?:Z|[+-]\d\d:\d\d)$/;

/** Throws `Unreachable` for an answer that is not of the contract's shape. */
export function malformed(what: string): never {
  throw new Unreachable("malformed_answer", what);
}

/** A text that is not empty. */
export function text<W>(body: Body<W>, name: NameOf<W>): string {
  const found = body[name];
  return typeof found === "string" && found !== "" ? found : malformed(`${name} is missing or not text`);
}

/** The same, or undefined where it is absent or null. */
export function optionalText<W>(body: Body<W>, name: NameOf<W>): string | undefined {
  return isAbsent(body[name]) ? undefined : text(body, name);
}

/** One of these texts. */
export function oneOf<W, Text extends string>(body: Body<W>, name: NameOf<W>, known: readonly Text[]): Text {
  const found = text(body, name);
  return known.find((one) => one === found) ?? malformed(`${name} is ${JSON.stringify(found.slice(0, 20))}`);
}

/** An object, or undefined where it is absent or null. */
export function optionalObject<W>(body: Body<W>, name: NameOf<W>): Readonly<Record<string, unknown>> | undefined {
  const found = body[name];
  if (isAbsent(found)) return undefined;
  return isObject(found) ? found : malformed(`${name} is not an object`);
}

/** A UUID in its usual spelling. */
export function uuidText<W>(body: Body<W>, name: NameOf<W>): string {
  const found = text(body, name);
  return UUID.test(found) ? found.toLowerCase() : malformed(`${name} is not a UUID`);
}

/** true or false; false where it is absent. */
export function flag<W>(body: Body<W>, name: NameOf<W>): boolean {
  const found = body[name] ?? false;
  return typeof found === "boolean" ? found : malformed(`${name} is not true or false`);
}

/** A whole number from 0 on, or undefined where it is absent or null. */
export function optionalCount<W>(body: Body<W>, name: NameOf<W>): number | undefined {
  const found = body[name];
  if (isAbsent(found)) return undefined;
  return Number.isSafeInteger(found) && (found as number) >= 0 ? (found as number) : malformed(`${name} is not a count`);
}

/** A time with its zone, or undefined where it is absent or null. */
export function optionalTime<W>(body: Body<W>, name: NameOf<W>): Date | undefined {
  if (isAbsent(body[name])) return undefined;
  const found = text(body, name);
  const read = new Date(found);
  return HAS_ZONE.test(found) && !Number.isNaN(read.getTime()) ? read : malformed(`${name} is not a time with a zone`);
}

/** Whether it is an object of JSON, neither an array nor null. */
export function isObject(found: unknown): found is Readonly<Record<string, unknown>> {
  return typeof found === "object" && found !== null && !Array.isArray(found);
}

function isAbsent(found: unknown): found is undefined | null {
  return found === undefined || found === null;
}
