"""The paged KV cache: blocks taken and free, shared prefixes, and what a freed block still remembers until it is reused.

With `reuse`, freed blocks keep their content and are handed out again oldest first, as in vLLM: a shared prefix, or the
blocks of a preempted sequence, are found again if nothing has overwritten them.
"""

from collections import OrderedDict

from servefit.engine.sequence import Sequence

UNLIMITED = 1 << 50
"""Blocks of a cache that never fills."""


class KvCache:
    """Counts blocks; `taken + free == total` always."""

    def __init__(self, total: int | None, block_tok: int, *, reuse: bool = False) -> None:
        self.total = UNLIMITED if total is None else total
        self.block_tok = block_tok
        self.reuse = reuse
        self.taken = 0
        """Blocks that running sequences hold, a shared one counted once."""
        self.peak = 0
        self.hit_tok = 0
        self._refs: dict[int, int] = {}  # shared block -> how many running sequences hold it
        self._unit_blocks: dict[int, int] = {}
        self._old: OrderedDict[tuple[str, int], int] = OrderedDict()  # freed content -> blocks, oldest first
        self._old_blocks = 0

    @property
    def free(self) -> int:
        """Blocks that can be handed out, whether or not they still remember something."""
        return self.total - self.taken

    def blocks(self, tok: int) -> int:
        """Blocks that `tok` tokens take."""
        return -(-tok // self.block_tok)

    def never_fits(self, seq: Sequence) -> bool:
        """Whether the sequence is larger than the whole cache: its last token's KV is never needed."""
        return self.blocks(seq.isl + seq.osl - 1) > self.total

    def found_tok(self, seq: Sequence) -> int:
        """Tokens of the sequence whose KV is still there; at least its last known token is always computed."""
        if not self.reuse:
            return 0
        found, _ = self._found(seq)
        return min(found, (seq.known_tok - 1) // self.block_tok * self.block_tok)

    def can_admit(self, seq: Sequence, tok: int) -> bool:
        """Whether blocks for `tok` tokens of a waiting sequence are there, those that others share not counted twice."""
        shared = 0
        if self.reuse:
            size = self._unit_size(seq)
            _, units = self._found(seq)
            shared = sum(size for unit in units if self._refs.get(unit))
        return self.blocks(tok) - shared <= self.free

    def admit(self, seq: Sequence) -> int:
        """Take what is found of the sequence's KV; returns how many tokens need no computing."""
        found = self.found_tok(seq)
        if found == 0:
            return 0
        size = self._unit_size(seq)
        _, units = self._found(seq)
        for unit in units:
            if not self._refs.get(unit):
                self._forget(("unit", unit))
                self._take(size)
            self._refs[unit] = self._refs.get(unit, 0) + 1
            seq.units.append(unit)
        mine = self._forget(("sequence", seq.index))
        seq.private_blocks += mine
        self._take(mine)
        self.hit_tok += found
        return found

    def hold(self, seq: Sequence, tok: int) -> bool:
        """Grow the sequence's KV to `tok` tokens; False, and nothing changed, where there are too few blocks."""
        size = self._unit_size(seq)
        need = self.blocks(tok) - seq.private_blocks - size * len(seq.units)
        if need > 0:
            if need > self.free:
                return False
            self._take(need)
            seq.private_blocks += need
        if self.reuse and seq.request.prefix:
            self._share(seq, tok, size)
        return True

    def release(self, seq: Sequence, *, keep: bool = False) -> None:
        """Give all blocks of the sequence back; with `keep` (preemption) it may find them again."""
        if self.reuse:
            size = self._unit_size(seq)
            if seq.private_blocks:
                self._remember(("sequence" if keep else "finished", seq.index), seq.private_blocks)
            for unit in reversed(seq.units):
                self._refs[unit] -= 1
                if not self._refs[unit]:
                    del self._refs[unit]
                    self.taken -= size
                    self._remember(("unit", unit), size)
            seq.units.clear()
        self.taken -= seq.private_blocks
        seq.private_blocks = 0
        assert self.taken >= 0, "more KV blocks were given back than taken"

    def _unit_size(self, seq: Sequence) -> int:
        return max(seq.request.prefix_block_tok // self.block_tok, 1)

    def _units_of(self, seq: Sequence) -> tuple[int, ...]:
        """The hashes of the prompt's full blocks, every n-th where the engine's blocks are larger than the trace's."""
        step_tok = seq.request.prefix_block_tok
        each = max(self.block_tok // step_tok, 1)
        return seq.request.prefix[each - 1 : seq.isl // step_tok : each]

    def _found(self, seq: Sequence) -> tuple[int, list[int]]:
        units: list[int] = []
        for unit in self._units_of(seq):
            if unit not in self._refs and ("unit", unit) not in self._old:
                break
            units.append(unit)
        mine = self._old.get(("sequence", seq.index), 0)
        return (len(units) * self._unit_size(seq) + mine) * self.block_tok, units

    def _share(self, seq: Sequence, tok: int, size: int) -> None:
        """Blocks of the prompt that are now computed can be found by others, from the first on without a hole."""
        for unit in self._units_of(seq)[len(seq.units) : tok // (size * self.block_tok)]:
            if unit in self._refs or ("unit", unit) in self._old:
                break  # another sequence computed the same at the same time: this copy stays private
            seq.units.append(unit)
            seq.private_blocks -= size
            self._refs[unit] = 1

    def _take(self, blocks: int) -> None:
        self.taken += blocks
        self.peak = max(self.peak, self.taken)
        while self._old_blocks > self.total - self.taken:
            what, held = next(iter(self._old.items()))
            over = self._old_blocks - (self.total - self.taken)
            if what[0] == "unit" or held <= over:
                self._forget(what)
            else:
                self._old[what] = held - over
                self._old_blocks -= over

    def _remember(self, what: tuple[str, int], blocks: int) -> None:
        self._old[what] = self._old.get(what, 0) + blocks
        self._old_blocks += blocks

    def _forget(self, what: tuple[str, int]) -> int:
        blocks = self._old.pop(what, 0)
        self._old_blocks -= blocks
        return blocks
