"""The web page of a run: watch, take over, label.

handles.py   what the pages work on, as small contracts; `runtime.console` opens a run folder and fills them
guard.py     nobody gets anywhere without the token, by HTTP or by websocket
app.py       all of it as one ASGI application; PAGES lists the pages
layout.py    what every page has: navigation, who is in control, emergency stop, theme, help
live.py, takeover.py, learning.py, ...   one page each: a PAGE, and a `register` that adds its routes
static/      our own scripts and styles; the rest is in NiceGUI's wheel, and nothing is fetched from outside
"""
