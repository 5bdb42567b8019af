// Rates from counts and times. What cannot be told is `null`, and never a negative number or NaN.

/** How long something must take, in seconds, for its speed to mean anything: what comes in one piece has none. */
const SHORTEST = 0.05;

/** `count` per second; `null` unless both are known and something has happened in a time that can be measured. */
export function perSecond(count, seconds) {
  if (!Number.isFinite(count) || !Number.isFinite(seconds)) return null;
  return count > 0 && seconds > SHORTEST ? count / seconds : null;
}

/** How much a counter has grown. A counter that went back belongs to a server that was started again. */
export function growth(now, before) {
  const grown = now - before;
  return Number.isFinite(grown) && grown > 0 ? grown : 0;
}
