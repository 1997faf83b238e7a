"""A curve in braille characters, each of which has two by four dots."""

from __future__ import annotations

from collections.abc import Sequence

_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a character, by column and row from the top


def curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """``height`` lines of ``width`` characters with a curve through the points (x, y), which are sorted by x."""
    if not points or width < 1 or height < 1:
        return [" " * max(0, width)] * max(0, height)
    columns, rows = 2 * width, 4 * height
    (left, right), low = (points[0][0], points[-1][0]), min(y for _, y in points)
    scale_x, scale_y = right - left or 1, max(y for _, y in points) - low or 1
    found: list[list[float]] = [[] for _ in range(columns)]
    for x, y in points:
        found[int((x - left) / scale_x * (columns - 1))].append((y - low) / scale_y)
    cells = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None  # the column and the row of the point to the left
    for column, values in enumerate(found):
        if not values:
            continue
        row = round((1 - sum(values) / len(values)) * (rows - 1))
        for x, y in _line(before or (column, row), (column, row)):
            cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
        before = column, row
    return ["".join(chr(_BLANK + cell) for cell in line) for line in cells]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots between two dots, both among them."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (start[0] + round((end[0] - start[0]) * step / steps), start[1] + round((end[1] - start[1]) * step / steps))
        for step in range(steps + 1)
    ]
