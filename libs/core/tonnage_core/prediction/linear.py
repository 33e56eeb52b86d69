"""Linear equations of the fits: symmetric, positive definite, some tens of unknowns."""

from collections.abc import Sequence
from math import sqrt


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """x with `matrix` x = `right`, by Cholesky. Raises ValueError when the matrix is not positive definite."""
    size = len(right)
    lower: list[list[float]] = []
    for i in range(size):
        row: list[float] = []
        for j in range(i):
            row.append((matrix[i][j] - sum(a * b for a, b in zip(row, lower[j], strict=False))) / lower[j][j])
        rest = matrix[i][i] - sum(a * a for a in row)
        if rest <= 0:
            raise ValueError("the matrix is not positive definite")
        lower.append([*row, sqrt(rest)])
    forward: list[float] = []
    for i in range(size):
        forward.append((right[i] - sum(a * b for a, b in zip(lower[i], forward, strict=False))) / lower[i][i])
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (forward[i] - sum(lower[k][i] * found[k] for k in range(i + 1, size))) / lower[i][i]
    return found
