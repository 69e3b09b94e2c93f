"""Who may take over: nobody, a scripted person, or one at the browser, a keyboard, a gamepad, a SpaceMouse, a pedal."""
