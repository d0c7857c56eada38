"""The [bill] part of servefit.toml: whose accounts to ask, and prices that nobody publishes. Caps are in [caps].

[bill]
cap_usd = 20.0
cap_period = "month"             # or "day", "total"

[[bill.accounts]]
provider = "fireworks"
account = "my-team"              # optional: all that the key sees
key_env = "FIREWORKS_API_KEY"    # the variable's name; keys themselves never stand in a file

[bill.usd_per_hour]
"aws nvidia-l4 x1" = 0.80

[bill.token_prices."fireworks/gpt-oss-120b"]
input_usd_per_mtok = 0.15
cached_input_usd_per_mtok = 0.015
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servefit.bill.caps import Limits
from servefit.bill.cost import TokenPrice
from servefit.bill.hosted import Ask, CouldNotAsk
from servefit.bill.providers import PROVIDERS
from servefit.errors import ServefitError
from servefit.files import read_toml, structure
from servefit.settings import find_file, load_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account at one provider. `key_env` names the variable that holds its key."""

    provider: str
    account: str | None = None
    key_env: str | None = None
    base_url: str | None = None
    """Another address of the same API (a proxy, a test): https, or this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillConfig:
    """What servefit.toml says about money."""

    accounts: tuple[Account, ...] = ()
    usd_per_hour: dict[str, float] = field(default_factory=dict)
    token_prices: dict[str, TokenPrice] = field(default_factory=dict)


def load_config(path: Path | None = None) -> BillConfig:
    """The [bill] table of servefit.toml; the defaults where there is no file or no table. Raises ServefitError for faults."""
    path = path or find_file()
    if path is None or not path.exists():
        return BillConfig()
    table = read_toml(path).get("bill", {})
    config = structure(table, BillConfig, where=f"{path} [bill]")
    for account in config.accounts:
        if account.provider not in PROVIDERS:
            raise ServefitError(
                f"{path}: there is no provider '{account.provider}'.", hint=f"One of {', '.join(PROVIDERS)}."
            )
    for name, usd in config.usd_per_hour.items():
        if not 0 <= usd < 1e6:
            raise ServefitError(f"{path}: {name} = {usd} is no price.", hint="Write US dollars an hour, e.g. 7.0.")
    return config


def accounts_to_ask(
    config: BillConfig, names: Sequence[str], env: Mapping[str, str] = os.environ
) -> tuple[tuple[Account, ...], tuple[str, ...]]:
    """The accounts to ask, and the providers left out because nothing names them and no key is set.

    Named on the command line or in the file: asked, and a missing key is an error. Otherwise: asked where a key is set.
    """
    for name in names:
        if name not in PROVIDERS:
            raise ServefitError(f"There is no provider '{name}'.", hint=f"One of {', '.join(PROVIDERS)}.")
    chosen = [a for a in config.accounts if not names or a.provider in names]
    have = {a.provider for a in chosen}
    left_out = []
    for name, provider in PROVIDERS.items():
        if name in have:
            continue
        if name in names or (not names and env.get(provider.key_env)):
            chosen.append(Account(provider=name, account=env.get("HF_NAMESPACE") if name == "huggingface" else None))
        elif not names:
            left_out.append(name)
    return tuple(chosen), tuple(left_out)


def make_ask(account: Account, config: BillConfig, env: Mapping[str, str] = os.environ) -> Ask:
    """Where and as whom to ask for this account. Raises CouldNotAsk where its key is not set."""
    provider = PROVIDERS[account.provider]
    name = account.key_env or provider.key_env
    key = env.get(name, "").strip()
    if not key:
        raise CouldNotAsk(
            f"{account.provider} could not be asked: {name} is not set.",
            hint=f"export {name}=... (a key that may read)",
        )
    if not key.isprintable() or not key.isascii():
        raise CouldNotAsk(f"{account.provider} could not be asked: {name} holds no key.", hint="Is it pasted whole?")
    url = account.base_url or provider.base_url
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")):
        raise ServefitError(
            f"The address {url} for {account.provider} would send the key in the clear.", hint="Use https."
        )
    return Ask(
        provider=account.provider, base_url=url, key=key, account=account.account, usd_per_hour=config.usd_per_hour
    )


def load_limits() -> Limits:
    """The spend caps of [caps]: flag > environment > file, as for every setting. Raises ServefitError for a negative one."""
    caps = load_settings().caps
    limits = Limits(usd_per_run=caps.usd_per_run, usd_per_day=caps.usd_per_day, usd_per_month=caps.usd_per_month)
    for period, usd in limits.by_period().items():
        if not usd >= 0:
            raise ServefitError(
                f"The cap of {usd} a {period} is no amount.", hint="Write for example usd_per_month = 20.0."
            )
    return limits
