"""How many connections each server process holds, in memory that all of them share, so that they can take turns."""

from __future__ import annotations

import mmap


class SharedCounts:
    """For a worker class: `nr_conns` counted where the other processes see it.

    Whoever accepts a connection that a client keeps serves it for good: without turns one process is full and another
    idle.
    """

    SLOTS = 64
    ABSENT = -1
    counts: memoryview
    """One number per process, `ABSENT` where there is none; made by the master before it forks."""
    _slot: int

    def take_slot(self, age: int) -> None:
        """Count in the slot of the worker of this age; before the worker sets its first count."""
        self._slot = age % self.SLOTS

    @property
    def nr_conns(self) -> int:
        """Connections this process holds."""
        return int(self.counts[self._slot])

    @nr_conns.setter
    def nr_conns(self, number: int) -> None:
        self.counts[self._slot] = number

    def has_more_than_another(self) -> bool:
        """Whether some process holds fewer connections than this one; of many, a few more do not matter."""
        held = self.held
        return held - held // 16 > min(number for number in self.counts if number != self.ABSENT)

    @property
    def held(self) -> int:
        """Connections of this process."""
        return self.nr_conns

    @classmethod
    def share_counts(cls) -> None:
        """Make the shared memory; in the master, before it forks."""
        cls.counts = memoryview(mmap.mmap(-1, cls.SLOTS * 4)).cast("i")
        for slot in range(cls.SLOTS):
            cls.counts[slot] = cls.ABSENT

    @classmethod
    def forget(cls, age: int) -> None:
        """A process is gone."""
        cls.counts[age % cls.SLOTS] = cls.ABSENT
