"""Queues as formulas: M/M/1, M/G/1, M/M/c and the two-moment approximation for other arrivals and services.

Sources: Kleinrock, Queueing Systems I (M/M/1, Pollaczek-Khinchine, Erlang C); Allen-Cunneen for two moments; section
12 of the LLM inference guide, whose factors (50 % load 2x, 80 % 5x, 90 % 10x, 95 % 20x) are golden tests. Times are in
the unit of the service time given, `utilisation` is 0..1 and below 1 for a queue that ends, percentiles are 0..100. An
engine serves many requests at once, so it is none of these: the engine model decides, these show why 95 % load fails.
"""

import math

from tonnage_core.errors import BadInputError


def _checked(utilisation: float) -> float:
    if not 0 <= utilisation < 1:
        raise BadInputError(
            f"utilisation is {utilisation:g}; it must be at least 0 and below 1, or the queue only grows"
        )
    return utilisation


def stretch(utilisation: float) -> float:
    """Mean time in an M/M/1 system over its service time: 1 / (1 - utilisation)."""
    return 1 / (1 - _checked(utilisation))


def utilisation_for(stretch_limit: float) -> float:
    """Largest utilisation whose M/M/1 stretch stays within the limit (at least 1)."""
    if not stretch_limit >= 1:
        raise BadInputError(f"a stretch of {stretch_limit:g} is impossible; it is at least 1")
    return 1 - 1 / stretch_limit


def mm1_time(service: float, utilisation: float) -> float:
    """Mean time in system."""
    return service * stretch(utilisation)


def mm1_percentile(service: float, utilisation: float, percent: float) -> float:
    """Percentile of the time in system, which is exponential."""
    return mm1_time(service, utilisation) * _log_tail(percent)


def mg1_wait(service: float, service_cv: float, utilisation: float) -> float:
    """Mean wait before service for services of that mean and coefficient of variation (Pollaczek-Khinchine)."""
    return gg1_wait(service, service_cv, 1.0, utilisation)


def gg1_wait(service: float, service_cv: float, arrival_cv: float, utilisation: float) -> float:
    """Mean wait by two moments: exact for Poisson arrivals (`arrival_cv` 1), Allen-Cunneen's approximation else."""
    variability = (arrival_cv**2 + service_cv**2) / 2
    return variability * service * utilisation / (1 - _checked(utilisation))


def wait_percentile(mean_wait: float, utilisation: float, percent: float) -> float:
    """Percentile of the wait: a share `utilisation` waits, exponentially long. Exact for M/M/1, else an estimate."""
    waiting = 1 - percent / 100
    if mean_wait <= 0 or waiting >= _checked(utilisation):
        return 0.0
    return mean_wait / utilisation * math.log(utilisation / waiting)


def erlang_c(servers: int, offered: float) -> float:
    """Share of arrivals that wait in M/M/c; `offered` is arrival rate x service time, in servers."""
    if servers < 1:
        raise BadInputError(f"{servers} servers serve nobody; give at least 1")
    _checked(offered / servers)
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    share = offered / servers
    return blocked / (1 - share + share * blocked)


def mmc_wait(service: float, servers: int, offered: float) -> float:
    """Mean wait in M/M/c."""
    return erlang_c(servers, offered) * service / (servers - offered)


def mmc_wait_percentile(service: float, servers: int, offered: float, percent: float) -> float:
    """Percentile of the wait in M/M/c."""
    waits, tail = erlang_c(servers, offered), 1 - percent / 100
    if tail >= waits:
        return 0.0
    return service / (servers - offered) * math.log(waits / tail)


def servers_for(service: float, rate: float, wait_limit: float, percent: float, most: int = 4096) -> int | None:
    """Fewest M/M/c servers whose wait stays within the limit at that percentile; None when `most` are too few."""
    offered = rate * service
    for servers in range(math.floor(offered) + 1, most + 1):
        if mmc_wait_percentile(service, servers, offered, percent) <= wait_limit:
            return servers
    return None


def _log_tail(percent: float) -> float:
    if not 0 <= percent < 100:
        raise BadInputError(f"percentile {percent:g} has no finite value; give 0 to below 100")
    return -math.log(1 - percent / 100)
