"""Candidate words for prompts: common English and programming words of four, five and three letters.

Which of them are one token is found out per tokenizer (`replay.tokens`). The order is from common to rare.
"""

from __future__ import annotations

_FOUR = """
self name type path data file line list dict code test args exec True None from with this that have will your been when
what there only into than them then some time such over also back more most very just like made make many must each even
find give good here high keep kind know last left life long look mean move much need next open part play read real right
same seem show side take tell turn used user want well went were work year able area away base best body book both call
came care case come cost date deal does done door down draw drop early easy edge else ever face fact fail fall farm fast
feel feet felt fine fire five flow food foot form four free full game girl goal gone gray grew grow half hand hard head
hear heat held help hold home hope hour idea inch iron item join jump kept king knew lack land late lead less line link
live load lock lose loss lost love main mark mass mind miss mode moon name near news nine node none noon note once pack
page pair pass past pick plan plus poor port post pull pure push race rain rate rest rich ride ring rise road rock role
roll room root rule runs safe said sale salt sand save seat seed seen sell send sent ship shop shot sick sign sing size
skin slip slow snow soft soil sold sole song soon sort soul spot star stay stem step stop suit sure talk tall task team
tend term text thus tied till tone took tool town tree trip true tube twin type unit upon vary vast view vote wait walk
wall warm wash wave weak wear week west wide wife wild wind wine wing wire wise wish wood word wore yard zero byte bits
bool char copy core enum flag func hash heap host html http info init join json keys lang lazy lint lock logs loop make
math meta mock move mult next null open opts pipe poll pool prev proc prop push read repo rows save scan seek send slot
sort span spec stat stop sync sysv tags temp test text then time todo tree trim uint undo uuid view void wait warn wrap
yaml yield zone zoom blob cast cell cert chat chip clip club coal coat cold cook cool corn crew crop dark dawn dead deep
desk diet dirt dish disk dock dose drug drum dual dust duty earn east exit fair fear fish flat folk fuel fund gain gate
gear gift glad glass gold golf grab gulf hall hang harm hate hero hide hill hire hole holy host hunt hurt jack jail jazz
joke jury knee lake lamp lane lawn leaf lean leap lend lens loan loud luck lung meal meat menu mile milk mill mine mood
nail neck nest nose odds pace pain palm park peak pile pink pole pond rail rank rare ruin rush sail seal self silk site
"""
_FIVE = """
class return import value index array error other which about would there their first after could these where think
state world still every great under while never place might again found house point right those shall small
order given water
using since large night power light three until young often group begin being carry cause check child clear close count
cover cross dream drive early earth eight empty enter equal event exact field final floor force frame front fresh grand
green heart heavy horse hotel human image inner input issue layer learn leave level limit local logic lower major match
maybe metal model money month mouth movie music nurse ocean offer owner paint panel paper party peace phone piece pilot
plain plane plant plate point pound press price print prior proof proud quick quiet quite radio raise range rapid reach
ready river round route scale scene score sense serve seven share sharp sheet shift shirt short sight skill sleep smile
solid sound south space speak speed spend sport staff stage stand start steel stick stock stone store storm story study
style sugar table taste teach thank thick thing throw title today total touch tower track trade train treat trial tried
truck trust truth twice uncle union upper usual video visit voice waste watch wheel white whole whose woman write wrong
async await break bytes cache catch const debug delta false fetch files float input items kwargs label lines lists merge
names nodes other param parse paths print proxy query quote raise range regex reset route scope slice split stack start
"""
_THREE = """
the and for not are was but all can had her his one our out day get has him how man new now old see two way who boy did
its let put say she too use dad mom car run sun top yes ago air arm art bad bag bed big bit box bus buy cat cup cut dog
dry due ear eat egg end eye far fat few fit fly fun gas god got guy hat hit hot ice ill job joy key kid law lay led leg
lie lot low map may men mix net nor odd off oil own pay per pet pie pin pop raw red row sad sat sea set sex shy sir sit
six sky son tax tea ten tie tip try via war wet why win yet add arg bin bug csv def del dir elf err exp ext fmt idx int
lib log max min mod msg num obj ops pad pkg pop pos pre ptr ref reg req res ret rev row seq src std str sub sum sys tab
tag tmp url usr val var web xml zip
"""


def candidates() -> list[list[str]]:
    """Words by length (four, five, three letters), each list without repeats, lower case."""
    groups = []
    for text, size in ((_FOUR, 4), (_FIVE, 5), (_THREE, 3)):
        words = dict.fromkeys(word for word in text.lower().split() if len(word) == size)
        groups.append(list(words))
    return groups
