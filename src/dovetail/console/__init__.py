"""The web console of a run: watch it, take over its arm, label its episodes.

app.py            all pages and APIs as one ASGI application; PAGES lists the pages
access_guard.py   every request and websocket needs the token
layout.py         shared by all pages: navigation, control state, emergency stop, theme, help
*_page.py         one page each: a PAGE, and a `register` that adds its routes
*_api.py          the HTTP and websocket endpoints that the scripts in static/ use
run_files.py, robot.py, recorded_episodes.py, episode_labels.py    the run that the console shows
static/           our scripts and styles; everything else is in NiceGUI's wheel, and nothing is fetched from outside

It imports neither torch nor ray, so that it starts fast.
"""
