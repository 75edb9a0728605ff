"""Messages about alerts: group unsent alerts, render a message, deliver it through Apprise.

Beat calls ``messages`` in its own thread. Rendering and delivery are in a child process, so that
beat imports neither Jinja2 nor Apprise, and a server that does not answer is left behind.
"""
