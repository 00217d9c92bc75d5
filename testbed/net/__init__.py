"""The emulated network on this host: namespaces, link engines, switches, controller, paths, guest kernel."""
