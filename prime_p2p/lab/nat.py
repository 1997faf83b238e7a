"""An internet on one machine: hosts with an address of their own in it, and homes, which have a router with NAT.

    with Internet(["server"], homes=["ann", "bob"]) as internet:
        subprocess.run(on_host("ann", ["ping", "-c", "1", internet.address("server")]), timeout=10)

in a process that was started with ``prime_p2p.lab.hosts.enclosed``.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from prime_p2p.errors import BadInput
from prime_p2p.lab.hosts import CABLE, Hosts, ip, on_host, run

# Nobody's packets leave the namespaces. libp2p treats documentation and private ranges as what they are, not as the
# internet, so the addresses are of another one.
_INTERNET = "11.77.0"

# As routers at home do it: what comes from inside gets the router's address, what nobody inside has asked for is
# dropped without a word.
_ROUTER = f"""
table ip home {{
    chain out {{ type nat hook postrouting priority srcnat; oifname "{CABLE}" masquerade; }}
    chain in {{ type filter hook input priority filter; iifname "{CABLE}" ct state new drop; }}
    chain through {{ type filter hook forward priority filter; iifname "{CABLE}" ct state new drop; }}
}}
"""


class Internet:
    """The hosts. One of a home can reach everybody, and nobody can reach it. ``x-router`` is that of home ``x``."""

    def __init__(self, public: Sequence[str], homes: Sequence[str]) -> None:
        """Make them.

        Raises:
            BadInput: This machine has no nftables, or a name cannot be used.
            PrimeError: It failed; nothing is left then.
        """
        nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")
        if nft is None:
            raise BadInput("a lab with NAT needs nftables (Debian: apt-get install nftables)")
        self._nft = nft
        self._hosts = Hosts([[*public, *(f"{home}-router" for home in homes)]], _INTERNET)
        self._made: list[str] = []
        try:
            for name in public:
                ip([f"route add default dev {CABLE}"], inside=name)
            for number, home in enumerate(homes, start=1):
                self._add_home(home, f"192.168.{number}")
        except BaseException:
            self.close()
            raise

    def _add_home(self, home: str, network: str) -> None:
        router = f"{home}-router"
        ip([f"netns add {home}"])
        self._made.append(home)
        ip([f"link add lan type veth peer name {CABLE} netns {home}"], inside=router)
        ip([f"addr add {network}.1/24 dev lan", "link set lan up", f"route add default dev {CABLE}"], inside=router)
        inside = [f"addr add {network}.2/24 dev {CABLE}", f"link set {CABLE} up", f"route add default via {network}.1"]
        ip(["link set lo up", *inside], inside=home)
        run(on_host(router, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]), "")
        run(on_host(router, [self._nft, "-f", "-"]), _ROUTER)

    def address(self, name: str) -> str:
        """The IP address that others see a host at: for one of a home, its router's."""
        return self._hosts.address(f"{name}-router" if name in self._made else name)

    def forward(self, home: str, port: int) -> None:
        """Have the router of a home let others through to this TCP port of its host."""
        rule = f'iifname "{CABLE}" tcp dport {port}'
        host = f"192.168.{self._made.index(home) + 1}.2"
        lines = f"""
            add chain ip home forwarding {{ type nat hook prerouting priority dstnat; }}
            add rule ip home forwarding {rule} dnat to {host}
            insert rule ip home through {rule} accept
        """
        run(on_host(f"{home}-router", [self._nft, "-f", "-"]), lines)

    def close(self) -> None:
        """Remove it; processes that are still on a host lose their cable. May be called again."""
        made, self._made = self._made, []
        ip([f"netns del {name}" for name in made], force=True)
        self._hosts.close()

    def __enter__(self) -> Internet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
