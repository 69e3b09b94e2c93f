"""Who may take over: nobody, or a scripted person; later the browser, a keyboard, a leader arm."""
