"""A token bucket that may go into debt: what was reserved is settled with what was really used."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class TokenBucket:
    """`rate` units a second, at most `burst` saved. The balance goes below 0 when real use exceeds the reservation."""

    rate: float
    burst: float
    balance: float = 0.0
    _at: float | None = None

    def _refill(self, now: float) -> None:
        if self._at is None:
            self.balance = self.burst
        else:
            self.balance = min(self.burst, self.balance + (now - self._at) * self.rate)
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken; 0 is now. More than `burst` needs only a full bucket."""
        self._refill(now)
        missing = min(amount, self.burst) - self.balance
        return 0.0 if missing <= 0 else missing / self.rate

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, whatever the balance."""
        self._refill(now)
        self.balance -= amount

    def give(self, amount: float, now: float) -> None:
        """Give back (negative: take more)."""
        self._refill(now)
        self.balance = min(self.burst, self.balance + amount)
