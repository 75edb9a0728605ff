// Tell the server the time zone of the browser, before the page is drawn.
(function () {
    "use strict";

    var COOKIE = "dynbeat_viewer_zone";
    var attributes = "; path=/; max-age=31536000; samesite=lax";
    var zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
    var escaped = zone.replace(/\//g, "%2F");
    var isKnown = document.cookie.split("; ").indexOf(COOKIE + "=" + escaped) >= 0;

    if (isKnown || !navigator.cookieEnabled) {
        return;
    }
    document.cookie = COOKIE + "=" + escaped + attributes;
    // The first page of a viewer: get it once more, in the time of the browser.
    if (document.cookie.indexOf(COOKIE + "=") >= 0 && location.search.indexOf("zone=") < 0) {
        location.replace(location.href);
    }
}());
