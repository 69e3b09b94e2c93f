"""The tick: observe, decide who acts, filter, send, record. No torch and no ray in here."""
