// The preview of the form, 300 ms after the last key, and the picker that writes the rule.
(function () {
    "use strict";

    var DELAY = 300;
    var form = document.getElementById("db-editor");
    var preview = document.getElementById("db-preview");
    var timer = null;
    var running = null;
    // "pick" from a change of the picker until its rule is in the form.
    var purpose = "preview";

    // The button that a browser without scripts uses says what the form is sent for.
    function body(purpose) {
        var data = new URLSearchParams(new FormData(form));

        data.set("do", purpose);
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

    function show(answer, answered) {
        preview.innerHTML = answer.html;
        showErrors(answer.errors);
        form.querySelector("[data-owner-zone]").placeholder = answer.owner_zone + " (owner)";
        if (answered === "pick") {
            purpose = "preview";
            form.elements.rule.value = answer.rule;
        }
    }

    function load() {
        var request = new AbortController();
        var asked = purpose;

        // An answer to an older text must not replace that of a newer one.
        if (running) {
            running.abort();
        }
        running = request;
        preview.setAttribute("aria-busy", "true");
        fetch(location.origin + form.dataset.previewUrl, {
            body: body(asked),
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
                show(answer, asked);
                preview.setAttribute("aria-busy", "false");
            }
        }).catch(function (error) {
            if (error.name !== "AbortError" && running === request) {
                preview.textContent = "The preview could not be loaded. Saving still checks the form.";
                preview.setAttribute("aria-busy", "false");
            }
        });
    }

    function changed(event) {
        if (event.target.name === "rule") {
            form.querySelector("[name=pick][value='']").checked = true;
            purpose = "preview";
        } else if (event.target.closest("[data-picker]")) {
            purpose = form.elements.pick.value ? "pick" : "preview";
        }
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
