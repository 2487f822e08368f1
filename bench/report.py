"""Results for eyes: tables, and the curve of the held snapshot in the terminal or as SVG."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

_BARS = " ▁▂▃▄▅▆▇█"
_NAMES = {"exchange": "trex, exchange", "two": "trex, two calls", "floor": "least table"}
_COLOURS = {"exchange": "#1b7f4c", "two": "#2b6cb0", "floor": "#b83232"}


def show(result: dict[str, Any], console: Console) -> None:
    """Print everything that was measured."""
    machine = result["machine"]
    console.print(
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, Linux"
        f" {machine['kernel']}; PostgreSQL {machine['postgresql']}, Python {machine['python']},"
        f" psycopg {machine['psycopg']}; fdatasync {machine['fdatasync_us']} us;"
        f" load before {machine['load']:.1f}",
        highlight=False,
        soft_wrap=True,
    )
    if result["quick"]:
        console.print("[yellow]--quick: seconds per figure, one repetition[/]")
    for part, as_table in (("drain", _drain), ("enqueue", _enqueue)):
        if part in result:
            console.print(as_table(result[part]))
    if "latency" in result:
        title = "Idle worker: enqueue to claimed"
        table = Table("", "messages", "p50 ms", "p99 ms", title=title)
        for mode, name in (("trex", "trex, two calls"), ("floor", _NAMES["floor"])):
            run = result["latency"][mode]
            table.add_row(name, str(run["count"]), _ms(run["p50_ms"]), _ms(run["p99_ms"]))
        console.print(table)
    if "held" in result:
        _held(result["held"], console)


def _drain(cells: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Claim and complete, messages/s (us: the server's CPU for one message)")
    for name in (
        *("batch", "workers", "floor", "us"),
        *("two calls", "of floor", "us", "exchange", "of floor", "us"),
    ):
        table.add_column(name, justify="right")
    for cell in cells:
        row = [str(cell["batch"]), str(cell["workers"]), _rate(cell["floor"]), _cpu(cell["floor"])]
        for mode in ("two", "exchange"):
            row += [
                _rate(cell[mode]),
                f"{ratio(cell[mode], cell['floor']):.2f}",
                _cpu(cell[mode]),
            ]
        table.add_row(*row)
    return table


def _enqueue(cells: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Enqueue, messages/s")
    for name in ("rows a call", "connections", "floor", "trex", "of floor"):
        table.add_column(name, justify="right")
    for cell in cells:
        table.add_row(
            str(cell["size"]),
            str(cell["clients"]),
            _rate(cell["floor"]),
            _rate(cell["trex"]),
            f"{ratio(cell['trex'], cell['floor']):.2f}",
        )
    return table


def _held(held: dict[str, Any], console: Console) -> None:
    table = Table(
        title=f"{held['rate']} messages/s under a held snapshot,"
        f" {held['workers']} workers, batches of {held['batch']}"
    )
    for name in ("", "produced/s", "at the end: /s", "p50 ms", "p99 ms", "left"):
        table.add_column(name, justify="right" if name else "left")
    for mode in _modes(held):
        run = held[mode]
        table.add_row(
            _NAMES[mode],
            f"{run['produced']:,.0f}",
            f"{run['last']:,.0f}",
            _ms(run["p50_ms"]),
            _ms(run["p99_ms"]),
            f"{run['left']:,}",
        )
    console.print(table)
    top = held["rate"]
    for mode in _modes(held):
        bars = "".join(_BARS[min(8, round(8 * n / top))] for n in held[mode]["per_second"])
        console.print(f"{_NAMES[mode]:>16} │{bars}│", highlight=False, soft_wrap=True)
    console.print(
        f"{'':>16}  drained in each second; a full bar is {top:,}", highlight=False, soft_wrap=True
    )


def ratio(ours: Sequence[dict[str, float]], floor: Sequence[dict[str, float]]) -> float:
    """The median of the ratios of each repetition."""
    return median(a["rate"] / b["rate"] for a, b in zip(ours, floor, strict=True))


def _rate(runs: Sequence[dict[str, float]]) -> str:
    return f"{median(run['rate'] for run in runs):,.0f}"


def _cpu(runs: Sequence[dict[str, float]]) -> str:
    return f"{median(run['cpu_us'] for run in runs):.0f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _modes(held: dict[str, Any]) -> list[str]:
    return [mode for mode in _NAMES if mode in held]


def svg(held: dict[str, Any]) -> str:
    """The curve of what was drained in each second."""
    width, height, left, bottom = 720, 300, 60, 40
    seconds = max(len(held[mode]["per_second"]) for mode in _modes(held))
    top: float = 1.25 * held["rate"]

    def x(second: float) -> float:
        return left + (width - left - 20) * second / max(1, seconds - 1)

    def y(count: float) -> float:
        return height - bottom - (height - bottom - 20) * min(count, top) / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for step in range(0, int(top) + 1, 500):
        parts.append(
            f'<path d="M{left} {y(step):.1f}H{width - 20}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{y(step) + 4:.1f}" text-anchor="end">{step:,}</text>'
        )
    for second in range(0, seconds + 1, 10):
        parts.append(
            f'<text x="{x(min(second, seconds - 1)):.1f}" y="{height - 20}"'
            f' text-anchor="middle">{second} s</text>'
        )
    for place, mode in enumerate(_modes(held)):
        points = " ".join(f"{x(i):.1f},{y(n):.1f}" for i, n in enumerate(held[mode]["per_second"]))
        colour = _COLOURS[mode]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{left + 150 * place}" y="{height - 4}" fill="{colour}">'
            f"{_NAMES[mode]}</text>"
        )
    return "\n".join([*parts, "</g></svg>", ""])
