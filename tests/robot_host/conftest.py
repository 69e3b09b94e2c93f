from support.guarded_arm import guarded
from support.live_host import live, processes

__all__ = ["guarded", "live", "processes"]
