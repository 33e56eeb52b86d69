"""Single queues with known answers, to hold the bench's statistics to: M/M/1 and M/D/1, simulated and by formula.

Simulation: Lindley's recursion, in virtual time. M/D/1 waiting time: Erlang's sum (Kleinrock, Queueing Systems I, 5.7),
P(wait <= t) = (1 - r) * sum over k <= t of (r (k - t))^k / k! * exp(r (t - k)), times in services; the alternating sum
is taken in decimals of 80 digits.
"""

from collections.abc import Sequence
from decimal import Decimal, localcontext

from tonnage_core.errors import BadInputError


def sojourns(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    """Time in system of each request at one server, first come first served; arrivals ascending."""
    found, free = [], 0.0
    for at, service in zip(arrivals, services, strict=True):
        free = (free if free > at else at) + service
        found.append(free - at)
    return found


def closed_sojourns(users: int, services: Sequence[float], think_s: float = 0.0) -> list[float]:
    """The same server under a closed loop of `users`: each sends again `think_s` after its answer. In send order."""
    ready = [0.0] * users
    found, free = [], 0.0
    for service in services:
        user = min(range(users), key=ready.__getitem__)
        at = ready[user]
        free = max(free, at) + service
        found.append(free - at)
        ready[user] = free + think_s
    return found


def md1_percentile(service: float, utilisation: float, percent: float) -> float:
    """Percentile of the time in an M/D/1 system, by bisection of the exact distribution (to 1e-6 of a service)."""
    if not 0 < utilisation < 1:
        raise BadInputError(f"utilisation is {utilisation:g}; it must be between 0 and 1")
    low, high = 0.0, 1.0
    while _wait_below(high, utilisation) < percent / 100:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _wait_below(middle, utilisation) < percent / 100 else (low, middle)
    return service * (1 + (low + high) / 2)


def _wait_below(t: float, utilisation: float) -> float:
    """P(wait <= t services)."""
    with localcontext() as context:
        context.prec = 80
        rho, at = Decimal(utilisation), Decimal(t)
        total, factorial = Decimal(0), Decimal(1)
        for k in range(int(t) + 1):
            factorial *= k or 1
            gap = rho * (k - at)
            total += (gap**k if k else Decimal(1)) / factorial * (-gap).exp()
        return float((1 - rho) * total)
