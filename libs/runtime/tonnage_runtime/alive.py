"""`python -m tonnage_runtime.alive PORT`: the health check of an image; 0 when `/healthz` of the port answers 200."""

import ssl
import sys
import urllib.error
import urllib.request


def main(port: str) -> int:
    """0 for an answer of 200, else 1 with what was wrong. A port that speaks HTTPS is asked so, whosever its
    certificate is."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    wrong: list[str] = []
    for scheme in ("http", "https"):
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/healthz", timeout=4, context=unchecked) as answer:
                return 0 if answer.status == 200 else 1
        except (urllib.error.URLError, OSError, ValueError) as error:
            wrong.append(f"{scheme}: {error}")
    print(f"port {port}: {'; '.join(wrong)}", file=sys.stderr)  # noqa: T201 - the health check's log
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
