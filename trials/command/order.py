"""What the processes of a command are told, by an environment variable that children inherit."""

import enum
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from autotune.search_space.command import Command
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.request import Protocol

VARIABLE = "AUTOTUNE_ORDER"
SCRATCH_VARIABLE = "AUTOTUNE_SCRATCH"
"""Names the folder in which scratch folders are made; default: that for temporary files."""


class Task(enum.Enum):
    """What to do with the training: apply the plan, and beside it nothing, or this."""

    TRAIN = "train"
    OBSERVE = "observe"
    MEASURE = "measure"
    COMPARE = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do in the processes of a command.

    Attributes:
        task: what to do.
        plan: what to apply.
        address: of the socket that reports go to; None: nobody listens.
        command: that the processes belong to.
        scratch: the folder that the command may write to; None: anywhere.
        home: the folder that the user started the command in.
        hardware: of the machine, to observe with.
        protocol: of the measurement.
        interesting_above: the throughput below which to stop early; None: never.
        memory_limit_bytes: the device memory that a process may reserve; None: all.
        diagnosis: what to find out about the measured step; None: nothing.
        kernels_path: the file for the kernels that the compiler makes; None: they are not kept.
    """

    task: Task
    plan: Plan
    command: Command
    address: str | None = None
    scratch: str | None = None
    home: str = ""
    hardware: Hardware | None = None
    protocol: Protocol = field(default_factory=Protocol)
    interesting_above: float | None = None
    memory_limit_bytes: int | None = None
    diagnosis: DiagnosisRequest | None = None
    kernels_path: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the variable that tells processes of this order."""
        plain: dict[str, Any] = {
            "task": self.task.value,
            "plan": self.plan.values,
            "plans_kernels": self.plan.kernels,
            "address": self.address,
            "command": asdict(self.command),
            "scratch": self.scratch,
            "home": self.home,
            "hardware": self.hardware and self.hardware.to_dict(),
            "protocol": asdict(self.protocol),
            "interesting_above": self.interesting_above,
            "memory_limit_bytes": self.memory_limit_bytes,
            "diagnosis": self.diagnosis and asdict(self.diagnosis),
            "kernels_path": self.kernels_path,
        }
        return {VARIABLE: json.dumps(plain)}


def order_of(environment: Mapping[str, str] = os.environ) -> Order:
    """Return the order that this process was given."""
    plain = json.loads(environment[VARIABLE])
    hardware, diagnosis = plain["hardware"], plain["diagnosis"]
    plan = replace(Plan.of(plain["plan"]), kernels=plain.pop("plans_kernels"))
    return Order(
        **{
            **plain,
            "task": Task(plain["task"]),
            "plan": plan,
            "command": Command.from_dict(plain["command"]),
            "hardware": hardware and Hardware.from_dict(hardware),
            "protocol": Protocol(**plain["protocol"]),
            "diagnosis": diagnosis and DiagnosisRequest(**diagnosis),
        }
    )
