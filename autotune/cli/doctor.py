"""`autotune doctor`: checks this machine, and says what each gap costs and how to mend it."""

from dataclasses import asdict

from autotune.cli.checks import Check, check_machine
from autotune.cli.options import AsJson
from autotune.cli.output import print_json, print_lines


def doctor(*, as_json: AsJson = False) -> None:
    """Say what this machine has and what is missing, what each gap costs and how to mend it."""
    checks = list(check_machine())
    if as_json:
        print_json({"checks": [_document(check) for check in checks]})
        return
    for check in checks:
        print_lines(*_lines(check))
    gaps = sum(check.is_gap for check in checks)
    print_lines("", f"{gaps} gap{'s' * (gaps > 1)} to mend" if gaps else "nothing is missing")


def _document(check: Check) -> dict[str, object]:
    return {**asdict(check), "gap": check.is_gap}


def _lines(check: Check) -> list[str]:
    sign = "gap" if check.is_gap else "ok "
    lines = [f"{sign} {check.name:<14} {check.found}"]
    if check.is_gap:
        lines += [f"{'':18} costs: {check.cost}", f"{'':18} mend:  {check.cure}"]
    return lines
