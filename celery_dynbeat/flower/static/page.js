// What all schedule pages share: the overview, relative times, time zones and keys.
(function () {
    "use strict";

    var REFRESH = 10000;

    // Each fetch has the origin of the page: a URL with a user name and a password is refused,
    // and a page that was opened with them passes them to relative URLs.

    // The overview: loaded after the page, then refreshed while the page is visible.
    function loadOverview(section) {
        fetch(location.origin + section.dataset.url, {credentials: "same-origin", headers: {"X-Requested-With": "fetch"}})
            .then(function (response) {
                // A redirect leads to the login: the session has ended.
                if (!response.ok || response.redirected) {
                    throw new Error(response.status);
                }
                return response.text();
            })
            .then(function (text) {
                section.classList.remove("db-stale");
                // A link that has the focus stays.
                if (!section.contains(document.activeElement)) {
                    section.innerHTML = text;
                }
            })
            .catch(function () {
                section.classList.add("db-stale");
            });
    }

    function watchOverview() {
        var section = document.getElementById("db-overview");

        if (!section) {
            return;
        }
        loadOverview(section);
        setInterval(function () {
            if (!document.hidden) {
                loadOverview(section);
            }
        }, REFRESH);
    }

    // A part of a page that takes longer than the page itself.
    function loadFragment(element) {
        fetch(location.origin + element.dataset.fragment, {credentials: "same-origin"})
            .then(function (response) {
                return response.text().then(function (text) {
                    if (!response.ok) {
                        throw new Error(text);
                    }
                    element.innerHTML = text;
                });
            })
            .catch(function () {
                if (!element.hasAttribute("data-refresh")) {
                    element.textContent = "This part of the page cannot be loaded. Reload the page to try again.";
                }
            });
    }

    function loadFragments() {
        document.querySelectorAll("[data-fragment]").forEach(loadFragment);
        setInterval(function () {
            if (!document.hidden) {
                document.querySelectorAll("[data-fragment][data-refresh]").forEach(loadFragment);
            }
        }, REFRESH);
    }

    // The same units as the server: common/text.py.
    function formatDuration(seconds) {
        if (seconds >= 172800) {
            return Math.round(seconds / 86400) + " d";
        }
        if (seconds >= 7200) {
            return Math.round(seconds / 3600) + " h";
        }
        if (seconds >= 120) {
            return Math.round(seconds / 60) + " min";
        }
        return Math.round(seconds) + " s";
    }

    // The clock of the server at load, so that a wrong clock of the browser changes nothing.
    var skew = 0;

    function updateTimes() {
        var now = Date.now() + skew;

        document.querySelectorAll("time[data-relative]").forEach(function (element) {
            var seconds = (new Date(element.dateTime).getTime() - now) / 1000;
            var shown = formatDuration(Math.abs(seconds));

            if (Math.abs(seconds) < 1) {
                element.textContent = "now";
            } else {
                element.textContent = seconds > 0 ? "in " + shown : shown + " ago";
            }
        });
    }

    // The choice of a time zone is remembered for later pages.
    function rememberZone() {
        document.querySelectorAll("[data-zone-choice]").forEach(function (link) {
            link.addEventListener("click", function () {
                document.cookie = "dynbeat_zone=" + link.dataset.zoneChoice +
                    "; path=/; max-age=31536000; samesite=lax";
            });
        });
    }

    function isTyping(target) {
        return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
    }

    // j and k move between rows, Enter opens one, / searches, Escape leaves.
    function moveRow(step) {
        var rows = Array.prototype.slice.call(document.querySelectorAll("[data-row]"));
        var current = rows.indexOf(document.activeElement.closest("[data-row]"));
        var next = rows[Math.min(rows.length - 1, Math.max(0, current + step))];

        if (next) {
            next.focus();
        }
    }

    function openRow(event) {
        var row = event.target.closest("[data-row]");
        var link = row && event.target === row && row.querySelector("a[data-row-link]");

        if (link) {
            link.click();
        }
    }

    function escape(event) {
        var search = document.querySelector("[data-search]");

        if (search && document.activeElement === search) {
            search.blur();
        } else if (document.activeElement) {
            document.activeElement.blur();
        }
        event.preventDefault();
    }

    var keys = {
        j: function () { moveRow(1); },
        k: function () { moveRow(-1); },
        Enter: openRow,
        "/": function (event) {
            var search = document.querySelector("[data-search]");

            if (search) {
                event.preventDefault();
                search.focus();
            }
        }
    };

    document.addEventListener("keydown", function (event) {
        if (event.ctrlKey || event.metaKey || event.altKey) {
            return;
        }
        if (event.key === "Escape") {
            escape(event);
        } else if (!isTyping(event.target) && keys.hasOwnProperty(event.key)) {
            keys[event.key](event);
        }
    });

    // A menu or a filter that acts when its value changes.
    document.querySelectorAll("[data-submit-on-change]").forEach(function (control) {
        control.addEventListener("change", function () {
            control.form.requestSubmit();
        });
    });

    var clock = document.querySelector("[data-now]");
    if (clock) {
        skew = new Date(clock.dataset.now).getTime() - Date.now();
    }
    watchOverview();
    loadFragments();
    rememberZone();
    setInterval(updateTimes, REFRESH);
}());
