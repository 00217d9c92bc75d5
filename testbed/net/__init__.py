"""The emulated network: links, fabric, SDN controller, paths, and the virtual clock's guest kernel."""
