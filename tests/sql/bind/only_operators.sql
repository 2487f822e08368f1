-- criterion: ac-0037
-- as: app
-- expect: 42501
select trex.bind('shop', 'somebody', 'me', 'why');

-- as: worker
-- expect: 42501
select trex.bind('shop', 'somebody', 'me', 'why');

-- as: reader
-- expect: 42501
select trex.bind('shop', 'somebody', 'me', 'why');

-- An operator needs no binding of his own.
-- as: operator
select trex.bind('sealed', 'somebody', 'me', 'why') in (true, false);

-- as: operator
-- expect: TX403
select trex.bind('nobody', 'somebody', 'me', 'why');
