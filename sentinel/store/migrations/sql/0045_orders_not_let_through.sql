-- Orders that were held or refunded, without all that were let through.
create index reviews_not_let_through on orders.reviews (tenant_id, received_at desc, review_id desc) where lane <> 'low' or resolution is not null;
