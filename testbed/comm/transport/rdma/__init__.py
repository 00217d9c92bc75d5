"""Messages over RDMA: reliable connections whose losses the network card mends, by going back to what was lost.

`verbs` says what of a card is needed, `card` is one over pyverbs, `pair` is all queue pairs with one peer.
"""
