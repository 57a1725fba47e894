"""Whether a host is reachable from this machine only."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """True for loopback addresses and `localhost`; other names are not resolved."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
