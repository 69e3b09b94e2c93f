from support.live_host import live, processes

__all__ = ["live", "processes"]
