"""`helm test`: asks each URL until it answers 200, at most SECONDS; says what each answered last, fails if one did not.

python ready.py SECONDS URL...
"""

import sys
import time
import urllib.error
import urllib.request


def answer(url: str) -> str:
    """`200`, or what was answered instead."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.status)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read(300).decode(errors='replace')}"
    except OSError as error:
        return str(error)


def main(seconds: float, urls: list[str]) -> int:
    """0 when every URL answered 200 in time."""
    ends, waiting = time.monotonic() + seconds, dict.fromkeys(urls, "")
    while waiting:
        waiting = {url: said for url in waiting if (said := answer(url)) != "200"}
        if time.monotonic() > ends:
            break
        time.sleep(1 if waiting else 0)
    for url in urls:
        print(f"{url}: {waiting.get(url, 'ready')}")  # noqa: T201 - the pod's log
    return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
