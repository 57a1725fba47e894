"""Addresses that only programs of the same machine reach. Resolves no name."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Of a name `localhost` alone: what others stand for is somebody's to say."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
