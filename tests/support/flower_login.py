"""A login page for Flower's option ``auth`` that needs no identity provider.

Flower loads the class by its path (option ``auth_provider``). Its own handlers for Google, GitHub,
GitLab and Okta end with the same steps: check the address against ``auth``, set the cookie,
redirect.
"""

import re

import tornado.escape
import tornado.web
from flower.views import BaseHandler

PAGE = """<!doctype html><html lang="en"><title>Log in</title><link rel="icon" href="data:,">
<form><label>E-mail <input name="email" type="email"></label>
<input name="next" type="hidden" value="{target}"><button>Log in</button></form>"""


class EmailLoginHandler(BaseHandler):
    """Log in the person who enters an allowed address. There is no password."""

    def get(self) -> None:
        """Show the form; log in when it is sent."""
        # Tornado's method, because Flower's escapes HTML and has another signature in 2.0.
        argument = super(BaseHandler, self).get_argument
        email, target = argument("email", ""), argument("next", "/")
        if not email:
            self.finish(PAGE.format(target=tornado.escape.xhtml_escape(target)))
        elif re.fullmatch(self.application.options.auth, email):
            self.set_secure_cookie("user", email)
            self.redirect(target)
        else:
            raise tornado.web.HTTPError(403, "this address is not allowed")
