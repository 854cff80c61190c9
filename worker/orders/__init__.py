"""Order review in three lanes: an order webhook leads to fulfilment, to an analyst's queue, or to a hold."""
