"""Charts as SVG, drawn on the server by pure functions.

The pages that show them link ``charts.css`` and ``charts.js``. The text that a function returns is
escaped: put it into a template with ``{% raw %}``.
"""
