"""Messages over RDMA: reliable connections, on which the NIC recovers losses by go-back-N.

`verbs` is the interface to a NIC, `card` implements it with pyverbs, and `pair` has all queue pairs with one peer.
"""
