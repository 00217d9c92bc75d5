"""The virtual clock: a Linux kernel as an ordinary process whose time moves only when it is idle."""
