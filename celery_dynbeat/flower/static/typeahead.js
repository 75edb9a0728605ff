// Suggestions below a search box: an ARIA combobox with a list box.
// Arrow keys move, Enter or a click takes a suggestion, Escape closes the list.
//   data-suggested-keys="owner tag"   a search box with terms such as owner:user:42
//   data-suggested-key="owner"        a field of a form whose whole text is the value
(function () {
    "use strict";

    var DELAY = 150;
    var KEY = /^(\w+):"?([^"]*)$/;
    var counter = 0;

    // The term in which the caret is: from the last white space outside quotes to the caret.
    function currentTerm(input) {
        var text = input.value.slice(0, input.selectionStart);
        var start = 0;
        var isQuoted = false;

        for (var index = 0; index < text.length; index += 1) {
            if (text[index] === "\\" && isQuoted) {
                index += 1;
            } else if (text[index] === "\"") {
                isQuoted = !isQuoted;
            } else if (/\s/.test(text[index]) && !isQuoted) {
                start = index + 1;
            }
        }
        return {start: start, end: input.selectionStart, text: text.slice(start)};
    }

    function attach(input) {
        var list = document.createElement("ul");
        var suggestions = [];
        var active = -1;
        var timer = null;
        var request = null;

        counter += 1;
        list.id = "db-suggestions-" + counter;
        list.className = "db-suggestions";
        list.setAttribute("role", "listbox");
        list.setAttribute("aria-label", "Suggestions");
        list.hidden = true;
        input.parentNode.appendChild(list);
        input.setAttribute("role", "combobox");
        input.setAttribute("aria-autocomplete", "list");
        input.setAttribute("aria-controls", list.id);
        input.setAttribute("aria-expanded", "false");

        function close() {
            clearTimeout(timer);
            if (request) {
                request.abort();
                request = null;
            }
            active = -1;
            list.hidden = true;
            input.setAttribute("aria-expanded", "false");
            input.removeAttribute("aria-activedescendant");
        }

        function mark(index) {
            active = index;
            Array.prototype.forEach.call(list.children, function (item, number) {
                item.setAttribute("aria-selected", String(number === active));
            });
            if (active >= 0) {
                list.children[active].scrollIntoView({block: "nearest"});
                input.setAttribute("aria-activedescendant", list.children[active].id);
            } else {
                input.removeAttribute("aria-activedescendant");
            }
        }

        function takeValue(index) {
            input.value = suggestions[index].value;
            close();
            input.focus();
            input.dispatchEvent(new Event("change", {bubbles: true}));
        }

        function take(index) {
            if (input.dataset.suggestedKey) {
                takeValue(index);
            } else {
                takeTerm(index);
            }
        }

        function takeTerm(index) {
            var term = currentTerm(input);
            var rest = input.value.slice(term.end);
            var before = input.value.slice(0, term.start) + suggestions[index].term;
            var space = /^\s/.test(rest) ? "" : " ";

            input.value = before + space + rest;
            input.selectionStart = input.selectionEnd = before.length + 1;
            close();
            input.focus();
        }

        function show(found) {
            suggestions = found;
            list.textContent = "";
            found.forEach(function (suggestion, index) {
                var item = document.createElement("li");

                item.id = list.id + "-" + index;
                item.setAttribute("role", "option");
                item.setAttribute("aria-selected", "false");
                item.textContent = suggestion.label;
                // The box keeps the focus.
                item.addEventListener("mousedown", function (event) { event.preventDefault(); });
                item.addEventListener("click", function () { take(index); });
                list.appendChild(item);
            });
            active = -1;
            input.removeAttribute("aria-activedescendant");
            list.hidden = found.length === 0;
            input.setAttribute("aria-expanded", String(found.length > 0));
        }

        function load(key, prefix) {
            var url = new URL(input.dataset.suggestions, location.origin);

            url.searchParams.set("key", key);
            url.searchParams.set("prefix", prefix);
            request = new AbortController();
            fetch(url, {credentials: "same-origin", signal: request.signal})
                .then(function (response) {
                    if (!response.ok || response.redirected) {
                        throw new Error(response.status);
                    }
                    return response.json();
                })
                .then(function (answer) { show(answer.suggestions); })
                .catch(function (error) {
                    // An aborted request belongs to an older text.
                    if (error.name !== "AbortError") {
                        close();
                    }
                });
        }

        function update() {
            var match = KEY.exec(currentTerm(input).text);
            var keys = (input.dataset.suggestedKeys || "").split(" ");

            close();
            if (input.dataset.suggestedKey) {
                timer = setTimeout(load, DELAY, input.dataset.suggestedKey, input.value);
            } else if (match && keys.indexOf(match[1]) >= 0) {
                timer = setTimeout(function () { load(match[1], match[2]); }, DELAY);
            }
        }

        input.addEventListener("input", update);
        input.addEventListener("blur", close);
        input.addEventListener("keydown", function (event) {
            var step = {ArrowDown: 1, ArrowUp: -1}[event.key];

            if (list.hidden) {
                return;
            }
            if (step) {
                mark((active + step + suggestions.length + (active < 0 && step < 0 ? 1 : 0)) % suggestions.length);
            } else if (event.key === "Enter" && active >= 0) {
                take(active);
            } else if (event.key === "Escape") {
                close();
                event.stopPropagation();
            } else {
                return;
            }
            event.preventDefault();
        });
    }

    document.querySelectorAll("[data-suggestions]").forEach(attach);
}());
