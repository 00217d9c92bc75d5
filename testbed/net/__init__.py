"""The emulated network on this host: namespaces, link engines, switches, controller, routes, guest kernel."""
