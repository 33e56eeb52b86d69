"""What an engine's URL may be, `http://host:port`, and what to write in place of one that is not."""

from urllib.parse import SplitResult, urlsplit

BARE_IPV6 = "an IPv6 address stands in brackets: write http://[::1]:8000"


def unread(url: str) -> str | None:
    """What is wrong with an engine's URL, or None. What may be a password or a key is not shown."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return BARE_IPV6
    if _shown(parts).count(":") > 1 and "[" not in parts.netloc:
        return BARE_IPV6
    if parts.scheme != "http" or not parts.hostname:
        return _not_http(url, parts)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return f"http://{_shown(parts)}: a port is a number from 1 to 65535"
    if surplus := _surplus(parts):
        return f"endpoint {_shown(parts)}: only http://host:port is read: leave {surplus} out"
    return None


def _not_http(url: str, parts: SplitResult) -> str:
    if "@" in url or "?" in url:
        return "an http://host:port URL is expected"
    if parts.scheme == "https" and parts.netloc:
        return f"endpoint {url}: engines are spoken to in plain HTTP: write http://{parts.netloc}"
    if "://" not in url and url.strip("/"):
        return f"endpoint {url}: an http://host:port URL is expected: write http://{url.strip('/')}"
    return f"endpoint {url}: an http://host:port URL is expected"


def _shown(parts: SplitResult) -> str:
    """Host and port as they were written, without a user."""
    return parts.netloc.rpartition("@")[2]


def _surplus(parts: SplitResult) -> str:
    found = [parts.path] if parts.path.strip("/") else []
    found += ["user and password"] if parts.username is not None else []
    found += ["the query"] if parts.query else []
    found += ["the fragment"] if parts.fragment else []
    return " and ".join(found)
