import abc
from dataclasses import dataclass

import draccus


@dataclass(kw_only=True)
class TeleoperatorConfig(draccus.ChoiceRegistry, abc.ABC):
    id: str | None = None
    calibration_dir: str | None = None

    @property
    def type(self) -> str:
        return self.get_choice_name(self.__class__)
