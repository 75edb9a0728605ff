// The preview of the form, 300 ms after the last key.
(function () {
    "use strict";

    var DELAY = 300;
    var form = document.getElementById("db-editor");
    var preview = document.getElementById("db-preview");
    var timer = null;
    var running = null;

    // The button that a browser without scripts uses says what the form is sent for.
    function body() {
        var data = new URLSearchParams(new FormData(form));

        data.set("do", "preview");
        return data;
    }

    function showErrors(errors) {
        form.querySelectorAll("[data-error]").forEach(function (element) {
            var text = errors[element.dataset.error] || "";
            var control = form.querySelector("[aria-describedby~='" + element.id + "']");

            if (element.textContent !== text) {
                element.textContent = text;
            }
            if (control) {
                control.setAttribute("aria-invalid", text ? "true" : "false");
            }
        });
    }

    function show(answer) {
        preview.innerHTML = answer.html;
        showErrors(answer.errors);
        form.querySelector("dynbeat-rule").setAttribute("zone", answer.owner_zone);
    }

    function load() {
        var request = new AbortController();

        // An answer to an older text must not replace that of a newer one.
        if (running) {
            running.abort();
        }
        running = request;
        preview.setAttribute("aria-busy", "true");
        fetch(location.origin + form.dataset.previewUrl, {
            body: body(),
            credentials: "same-origin",
            method: "POST",
            signal: request.signal
        }).then(function (response) {
            if (!response.ok) {
                throw new Error(response.status);
            }
            return response.json();
        }).then(function (answer) {
            if (running === request) {
                show(answer);
                preview.setAttribute("aria-busy", "false");
            }
        }).catch(function (error) {
            if (error.name !== "AbortError" && running === request) {
                preview.textContent = "The preview could not be loaded. Saving still checks the form.";
                preview.setAttribute("aria-busy", "false");
            }
        });
    }

    function changed() {
        clearTimeout(timer);
        timer = setTimeout(load, DELAY);
    }

    form.querySelectorAll("[data-without-script]").forEach(function (element) {
        element.hidden = true;
    });
    form.addEventListener("input", changed);

    // Ask before a page is left whose edits are not saved.
    var isEdited = false;
    form.addEventListener("input", function () { isEdited = true; });
    form.addEventListener("submit", function () { isEdited = false; });
    window.addEventListener("beforeunload", function (event) {
        if (isEdited) {
            event.preventDefault();
        }
    });
}());
