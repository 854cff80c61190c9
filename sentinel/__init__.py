"""sentinel: the authority a money-moving agent asks before it acts."""

__version__ = "0.1.0"
