"""The machine as plain values, so that a space can be computed for another machine."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What trials run on. A CPU machine is one device that owns all the cores.

    Attributes:
        device_kind: `"cuda"` or `"cpu"`.
        device_name: as the driver or the processor names it.
        num_devices: number of devices.
        device_memory_bytes: memory of one device; on a CPU, that of the machine.
        capability: CUDA compute capability, `(9, 0)` for Hopper; None on a CPU.
        num_cores: cores this process may use.
        host_memory_bytes: of the whole machine.
        versions: `torch`, `python`, `cuda_driver` and the like, as text.
    """

    device_kind: DeviceKind
    device_name: str
    num_devices: int
    device_memory_bytes: int
    capability: tuple[int, int] | None
    num_cores: int
    host_memory_bytes: int
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def cores_per_device(self) -> int:
        """Each trial's share of the cores, at least one."""
        return max(1, self.num_cores // self.num_devices)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits; equal for machines whose measurements may be compared."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back."""
        return {**asdict(self), "versions": dict(self.versions)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Hardware":
        """Build from what `to_dict` gave."""
        capability = values["capability"]
        return cls(
            **{
                **values,
                "capability": None if capability is None else tuple(capability),
                "versions": tuple(sorted(values["versions"].items())),
            }
        )
