-- criterion: ac-0040
select test.save();

-- instance_key
-- expect: TX400
select trex.enqueue(null, 't', 'k', '{}');
select trex.enqueue('', 't', 'k', '{}');
select trex.enqueue('Shop', 't', 'k', '{}');
select trex.enqueue(' shop', 't', 'k', '{}');
select trex.enqueue('shop ', 't', 'k', '{}');
select trex.enqueue('-shop', 't', 'k', '{}');
select trex.enqueue('sh op', 't', 'k', '{}');
select trex.enqueue(e'shop\n', 't', 'k', '{}');
select trex.enqueue('shöp', 't', 'k', '{}');
select trex.enqueue(repeat('a', 64), 't', 'k', '{}');

-- topic
-- expect: TX400
select trex.enqueue('shop', null, 'k', '{}');
select trex.enqueue('shop', '', 'k', '{}');
select trex.enqueue('shop', 'T', 'k', '{}');
select trex.enqueue('shop', 't ', 'k', '{}');
select trex.enqueue('shop', e't\n', 'k', '{}');
select trex.enqueue('shop', repeat('a', 64), 'k', '{}');

-- idempotency_key
-- expect: TX400
select trex.enqueue('shop', 't', null, '{}');
select trex.enqueue('shop', 't', '', '{}');
select trex.enqueue('shop', 't', ' k', '{}');
select trex.enqueue('shop', 't', 'k ', '{}');
select trex.enqueue('shop', 't', e'k\u00a0', '{}');
select trex.enqueue('shop', 't', e'\u3000k', '{}');
select trex.enqueue('shop', 't', e'\ufeffk', '{}');
select trex.enqueue('shop', 't', e'a\u0001b', '{}');
select trex.enqueue('shop', 't', e'a\nb', '{}');
select trex.enqueue('shop', 't', e'a\u007fb', '{}');
select trex.enqueue('shop', 't', e'a\u0085b', '{}');
select trex.enqueue('shop', 't', repeat('x', 256), '{}');

-- payload
-- expect: TX400
select trex.enqueue('shop', 't', 'k', null);
select trex.enqueue('shop', 't', 'k', to_jsonb(repeat('x', 1048575)));

-- expect: 22P05
select trex.enqueue('shop', 't', 'k', '"\u0000"');

-- account, currency, cash_delta: all or none, and each for itself
-- expect: TX400
select trex.enqueue('shop', 't', 'k', '{}', 'a');
select trex.enqueue('shop', 't', 'k', '{}', null, 'USD');
select trex.enqueue('shop', 't', 'k', '{}', null, null, 1);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD');
select trex.enqueue('shop', 't', 'k', '{}', 'a', null, 1);
select trex.enqueue('shop', 't', 'k', '{}', null, 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', '', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', ' k', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', 'k ', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', e'k\u00a0', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', e'\u3000k', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', e'\ufeffk', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', e'a\u0001b', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', e'a\nb', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', e'a\u007fb', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', e'a\u0085b', 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', repeat('x', 256), 'USD', 1);
select trex.enqueue('shop', 't', 'k', '{}', 'a', '', 1);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'usd', 1);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'US', 1);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'QQQ', 1);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD ', 1);
select trex.enqueue('shop', 't', 'k', '{}', 'a', repeat('A', 300), 1);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD', 'NaN');
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD', 'Infinity');
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD', '-Infinity');
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD', 0.001);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD', 1e36);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD', -1e36);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD', 1e200);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'USD', '99999999999999999999999999999999999999.9');
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'KRW', 0.5);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'KRW', 1e38);
select trex.enqueue('shop', 't', 'k', '{}', 'a', 'BTC', 0.000000001);

-- correlation_id, ordering_key
-- expect: TX400
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => '');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => ' k');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => 'k ');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => e'k\u00a0');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => e'\u3000k');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => e'\ufeffk');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => e'a\u0001b');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => e'a\nb');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => e'a\u007fb');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => e'a\u0085b');
select trex.enqueue('shop', 't', 'k', '{}', p_correlation_id => repeat('x', 256));
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => '');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => ' k');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => 'k ');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => e'k\u00a0');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => e'\u3000k');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => e'\ufeffk');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => e'a\u0001b');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => e'a\nb');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => e'a\u007fb');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => e'a\u0085b');
select trex.enqueue('shop', 't', 'k', '{}', p_ordering_key => repeat('x', 256));

-- effect_policy, delay, on_conflict
-- expect: TX400
select trex.enqueue('shop', 't', 'k', '{}', p_effect_policy => null);
select trex.enqueue('shop', 't', 'k', '{}', p_effect_policy => '');
select trex.enqueue('shop', 't', 'k', '{}', p_effect_policy => 'exactly_once');
select trex.enqueue('shop', 't', 'k', '{}', p_effect_policy => 'Lookup');
select trex.enqueue('shop', 't', 'k', '{}', p_delay => '-1 microsecond');
select trex.enqueue('shop', 't', 'k', '{}', p_delay => '720 hours 1 microsecond');
select trex.enqueue('shop', 't', 'k', '{}', p_delay => '1 month');
select trex.enqueue('shop', 't', 'k', '{}', p_delay => '1 month -30 days');
select trex.enqueue('shop', 't', 'k', '{}', p_delay => '-1 month 60 days');
select trex.enqueue('shop', 't', 'k', '{}', p_delay => '1000000 hours');
select trex.enqueue('shop', 't', 'k', '{}', p_on_conflict => null);
select trex.enqueue('shop', 't', 'k', '{}', p_on_conflict => '');
select trex.enqueue('shop', 't', 'k', '{}', p_on_conflict => 'ignore');

select test.unchanged();
