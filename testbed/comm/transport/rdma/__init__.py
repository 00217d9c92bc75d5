"""Messages over RDMA: reliable connections, whose network card recovers losses by go-back-N.

`verbs` is the interface of a card, `card` implements it with pyverbs, `pair` has all queue pairs with one peer.
"""
