// Starts the documentation viewer; a file of its own because the page's policy allows no inline script.
window.addEventListener("load", () => {
  SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
});
