// Rates from counts and times. A rate that is not known is `null`, never negative or NaN.

/**
 * The shortest time in seconds over which a rate is computed. The pieces of an answer that came at
 * once are closer together.
 */
const SHORTEST = 0.05;

/** Returns `count` per second, or `null` if one of the values is not known or too small. */
export function perSecond(count, seconds) {
  if (!Number.isFinite(count) || !Number.isFinite(seconds)) return null;
  return count > 0 && seconds > SHORTEST ? count / seconds : null;
}

/**
 * Returns the tokens per second of an answer: after the first token, or from the request on if the
 * answer came at once.
 */
export function speedOf(tokens, firstAfter, seconds) {
  const afterFirst = firstAfter == null ? null : perSecond(tokens - 1, seconds - firstAfter);
  if (afterFirst !== null) return afterFirst;
  return tokens > 0 && seconds > 0 ? tokens / seconds : null;
}

/**
 * Returns the growth of a counter. A counter that has decreased belongs to a server that was
 * restarted.
 */
export function growth(now, before) {
  const grown = now - before;
  return Number.isFinite(grown) && grown > 0 ? grown : 0;
}
