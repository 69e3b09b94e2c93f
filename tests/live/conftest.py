from support.live_host import processes

__all__ = ["processes"]
